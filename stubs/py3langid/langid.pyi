# py3langid 0.4 has no types of its own.
from typing import Self

MODEL_FILE: str

class LanguageIdentifier:
    labels: list[str]
    @classmethod
    def from_model_file(cls, file: str, norm_probs: bool = False) -> Self: ...
    def rank(self, text: str) -> list[tuple[str, float]]: ...
