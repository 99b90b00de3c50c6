"""Class names that begin alike: a deep trie with names that begin other names, duplicates, and names on their own."""

ALIKE = [
    *(f"2012 Mercedes-Benz {model} {body}" for model in ("C-Class", "E-Class") for body in ("Sedan", "Coupe", "SUV")),
    *(f"2012 Mercedes-Benz C-Class Sedan with {what}" for what in ("roof rack", "roof window", "chrome rims")),
    "2012",
    "2012 Mercedes-Benz",
    "2012 Mercedes-Benz C-Class Sedan",
    "2007 Audi S5 Coupe",
    "2007 Audi S5",
    "cat",
    "catfish",
    "東京タワー",
    "a photo of a photo",
]
"""18 names; the third of "2012 …" repeats the first name."""
