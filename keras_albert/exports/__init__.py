"""Models as artefacts that other programs run."""
