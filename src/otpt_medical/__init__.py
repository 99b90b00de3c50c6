"""Medical plugin: BAPLe, FPT, PromptSmooth and MedCLIP, with data sets, training and commands.

BAPLe is a published backdoor attack, included to measure its effect on accuracy and calibration, and whether the
orthogonality term mitigates it.
"""

FPT_BACKBONE = "hf:google/vit-base-patch16-384"
FROZEN_SIZE = 512
"""Input size of FPT's frozen ViT in pixels."""

COMMANDS = {
    "Evaluate methods": {
        "train baple": ("otpt.medical.commands:baple", "learn a context with a backdoor (BAPLe)"),
        "train fpt": ("otpt.medical.commands:fpt", "learn a side network on a frozen ViT (FPT)"),
        "certify": ("otpt.medical.commands:certify", "certified radii of PromptSmooth"),
    }
}
