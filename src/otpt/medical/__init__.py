"""Medical systems as a plugin: BAPLe, FPT and PromptSmooth, MedCLIP, their data sets, training and commands.

BAPLe is a published backdoor attack. It is here to measure, on a model and data of your own, how much it changes
accuracy and calibration, and whether the orthogonality term helps against it.
"""
