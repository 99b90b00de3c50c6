"""Medical systems as a plugin: BAPLe, FPT and PromptSmooth, MedCLIP, their data sets, training and commands.

BAPLe is a published backdoor attack. It is here to measure, on a model and data of your own, how much it changes
accuracy and calibration, and whether the orthogonality term helps against it.
"""

FPT_BACKBONE = "hf:google/vit-base-patch16-384"
FROZEN_SIZE = 512
"""Pixels a side of the images that FPT's frozen ViT sees."""

COMMANDS = {
    "Evaluate methods": {
        "train baple": ("otpt.medical.commands:baple", "learn a context with a backdoor (BAPLe)"),
        "train fpt": ("otpt.medical.commands:fpt", "learn a side network on a frozen ViT (FPT)"),
        "certify": ("otpt.medical.commands:certify", "certified radii of PromptSmooth"),
    }
}
