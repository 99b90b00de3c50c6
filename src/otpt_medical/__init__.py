"""Medical plugin: BAPLe, FPT, PromptSmooth and MedCLIP, with data sets, training and commands.

A package next to :mod:`otpt` that uses its public names only. Entry points name its modules by what they register:
:mod:`otpt_medical.plugin`, :mod:`otpt_medical.data`, :mod:`otpt_medical.medclip`, and :data:`COMMANDS`; see
:mod:`otpt.plugins`.

BAPLe is a published backdoor attack, included to measure its effect on accuracy and calibration, and whether the
orthogonality term mitigates it.
"""

FPT_BACKBONE = "hf:google/vit-base-patch16-384"
FROZEN_SIZE = 512
"""Input size of FPT's frozen ViT in pixels."""

COMMANDS = {
    "Evaluate methods": {
        "train baple": ("otpt_medical.commands:baple", "learn a context with a backdoor (BAPLe)"),
        "train fpt": ("otpt_medical.commands:fpt", "learn a side network on a frozen ViT (FPT)"),
        "certify": ("otpt_medical.commands:certify", "certified radii of PromptSmooth"),
    }
}
