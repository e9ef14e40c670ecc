"""Checkpoints from the Hugging Face hub, through huggingface_hub and its cache.

Its environment variables apply: `HF_HOME`, `HF_TOKEN`, `HF_ENDPOINT`, and `HF_HUB_OFFLINE`, with
which the network is not used.
"""

from pathlib import Path

from pathsum.errors import FailedError, FileError, InputError, first_line
from pathsum.model.storage import CONFIG, TOKENIZER
from pathsum.sources.checkpoint_folder import INDEX, PICKLE, SAFETENSORS, read_index
from pathsum.sources.hugging_face import TOKENIZER_CONFIG


def download(hub_id: str, revision: str | None = None, token: str | bool | None = None) -> Path:
    """The folder in the hub's cache with all files of a checkpoint that `load` reads.

    Files are fetched one by one in order of preference, so that only one copy of the weights is
    fetched if a repository has several.
    """
    repository = _Repository(hub_id, revision, token)
    config = repository.get(CONFIG)
    if config is None:
        raise FileError(
            f"{hub_id!r} on the hub has no {CONFIG}, so it is not a checkpoint that pathsum reads"
        )
    for name in (TOKENIZER, TOKENIZER_CONFIG):
        repository.get(name)
    for name in (SAFETENSORS, PICKLE):
        if repository.get(name) is not None:
            return config.parent
        index = repository.get(name + INDEX)
        if index is not None:
            for shard in sorted(set(read_index(index).values())):
                if repository.get(shard) is None:
                    raise FileError(
                        f"{hub_id!r} on the hub has no {shard}, which its {index.name} names"
                    )
            return config.parent
    last = repository.get_listed(".pth") or repository.get_listed(".pt")
    if last is None:
        raise FileError(
            f"{hub_id!r} on the hub has no {SAFETENSORS} or {PICKLE}, so there are no weights that "
            "pathsum reads"
        )
    return config.parent


class _Repository:
    """Files of one repository at one revision."""

    def __init__(self, hub_id: str, revision: str | None, token: str | bool | None) -> None:
        self.hub_id, self.revision, self.token = hub_id, revision, token

    def get(self, file: str) -> Path | None:
        """A file, from the cache or the network; None if the repository has none of that name."""
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        try:
            return Path(
                hf_hub_download(self.hub_id, file, revision=self.revision, token=self.token)
            )
        except LocalEntryNotFoundError as error:
            if file == CONFIG or not _offline():
                raise self._failed(error) from error
            return None
        except EntryNotFoundError:
            return None
        except Exception as error:
            raise self._failed(error) from error

    def get_listed(self, ending: str) -> Path | None:
        """The last file by name with this ending: old checkpoints number their steps."""
        from huggingface_hub import HfApi

        if _offline():
            return None
        try:
            files = HfApi(token=self.token).list_repo_files(self.hub_id, revision=self.revision)
        except Exception as error:
            raise self._failed(error) from error
        names = sorted(file for file in files if file.endswith(ending) and "/" not in file)
        final = [name for name in names if "final" in name] or names
        return self.get(final[-1]) if final else None

    def _failed(self, error: Exception) -> Exception:
        from huggingface_hub import errors

        at = f" at revision {self.revision!r}" if self.revision else ""
        name = f"{self.hub_id!r}{at}"
        if isinstance(error, errors.GatedRepoError):
            return FailedError(
                f"{name} needs a login: accept its terms at the hub, then run `hf auth login` or "
                "set HF_TOKEN"
            )
        if isinstance(error, errors.RevisionNotFoundError):
            return InputError(f"{self.hub_id!r} on the hub has no revision {self.revision!r}")
        if isinstance(error, errors.RepositoryNotFoundError):
            return FailedError(
                f"{name} is neither a folder here nor a repository on the hub that you may read; "
                "check the spelling, or log in with `hf auth login` if it is private"
            )
        if isinstance(error, errors.HFValidationError):
            return InputError(f"{self.hub_id!r} is not a name on the hub; names are owner/name")
        if _offline():
            return FailedError(
                f"{name} is not in the cache, and HF_HUB_OFFLINE is set; load it once with "
                "a network"
            )
        return FailedError(
            f"{name} is not a folder here and could not be fetched from the hub "
            f"({first_line(error)}); check the network and try again"
        )


def _offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)
