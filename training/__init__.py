"""How the embedded model ``pocket`` was made. One command re-runs everything: ``python -m training WORK``.

WORK is any empty folder (about 2 GB); the recipe needs ``npm`` and the packages named in ``training/README.md``.
"""
