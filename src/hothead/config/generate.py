"""What `hothead generate` does besides running the engine: where prompts come from and how results are printed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hothead.config.option import Options, option
from hothead.errors import OptionError


@dataclass(frozen=True)
class GenerateConfig(Options):
    """Input and output of one `hothead generate` run. chat None: chat where the model has a chat template, else raw."""

    heading: ClassVar[str] = "Input and output"

    prompts_file: str | None = option(
        None, flags=("--prompts-file",), help="JSONL file with 'prompt' or 'messages' on each line; - reads standard input.", metavar="FILE"
    )
    chat: bool | None = option(
        None,
        flags=("--chat/--raw",),
        help="Put prompts into the model's chat template, or continue them as they are. Left out: chat where the model has a template.",
    )
    system: str | None = option(None, flags=("--system",), help="System message before each prompt.", metavar="TEXT")
    json: bool = option(
        False,
        flags=("--json",),
        help="Print one JSON object per prompt instead of text. stage_s is the time of the steps that a request took part in: "
        "requests that run together share them.",
    )

    def check(self) -> None:
        if self.system is not None and self.chat is False:
            raise OptionError(
                f"{self.said('system')} has no effect with {self.said('chat')}: raw prompts have no roles.", advice="Drop one of the two."
            )
