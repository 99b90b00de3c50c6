"""What methods start from: class lists, prompts, learned prompts, attributes, and their text features."""
