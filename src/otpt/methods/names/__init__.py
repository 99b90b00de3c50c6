"""Names of methods: the parts that they are made of, ``methods.toml``, and methods by name."""
