"""What all figures share: style, colours, words and curves."""
