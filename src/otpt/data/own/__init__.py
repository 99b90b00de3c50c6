"""Your own data: tables, shards, data sets of the hub."""
