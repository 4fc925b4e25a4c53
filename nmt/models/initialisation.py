"""The random weights that a model starts with."""

from torch import nn

from nmt.models.positions import PositionalEncoding


def initialise(model: nn.Module) -> None:
    """Linear maps: Xavier-uniform (Glorot and Bengio 2010), biases zero. Embeddings: normal with D^-1/2; learned
    positions: normal with 0.02. Other modules, such as recurrent layers and norms, keep their own."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
        elif isinstance(module, PositionalEncoding) and isinstance(module.table, nn.Parameter):
            nn.init.normal_(module.table, std=0.02)
