"""The medical systems of the paper's Tables 17–19, each with and without the orthogonality term.

| room | what | where the term goes |
|---|---|---|
| ``baple`` | prompt learning with a back door, on MedCLIP | class texts of every training step |
| ``fpt`` | a side network on a frozen ViT, no texts | rows of the classifier, or the prompts |
| ``promptsmooth`` | test-time tuning on Gaussian copies, certified; on PLIP | class texts of the test-time step |

They run under ``otpt evaluate`` by the methods ``baple``, ``fpt``, ``promptsmooth`` and the same with ``+o-tpt``.
Back-door code is here to measure a defence on one's own model and data: how much a published attack changes accuracy
and calibration, and whether the term helps against that.
"""
