"""The second door: inputs and expected results as files, for a device without Python, and a verdict on the outputs it wrote."""
