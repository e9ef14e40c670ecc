"""The residual stream as a channel.

bandwidth   spectra, use by layer, subspaces of heads, deletion: everything in one result
dimensions  how many dimensions matrices use, alone, jointly and layer by layer
deletion    heads and MLP neurons that delete what is in the stream
"""
