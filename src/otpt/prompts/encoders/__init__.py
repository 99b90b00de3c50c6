"""From contexts to text features, with gradients: one encoder for each form of text tower and class list."""
