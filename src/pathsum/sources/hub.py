"""Checkpoints from the Hugging Face hub, through huggingface_hub and its cache.

Its environment variables apply: `HF_HOME`, `HF_TOKEN`, `HF_ENDPOINT`, and `HF_HUB_OFFLINE`, with
which the network is not used.
"""

from pathlib import Path

from pathsum.base.errors import FailedError, FileError, InputError, PathsumError, first_line
from pathsum.model.storage import CONFIG, TOKENIZER
from pathsum.sources.checkpoint_folder import INDEX, PICKLE, SAFETENSORS, read_index
from pathsum.sources.hugging_face import TOKENIZER_CONFIG


def download(hub_id: str, revision: str | None = None, token: str | bool | None = None) -> Path:
    """The folder in the hub's cache with all files of a checkpoint that `load` reads.

    Files are fetched one by one in order of preference, so that only one copy of the weights is
    fetched if a repository has several.
    """
    repository = _Repository(hub_id, revision, token)
    config = repository.get_config()
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
        self._commit: str | None = None
        self._reached = False

    def get_config(self) -> Path | None:
        """config.json of the revision, whose commit all other files are taken from.

        The hub is asked whether the revision has moved on; if it cannot be reached, the commit in
        the cache is used.
        """
        found = self._get(CONFIG, self.revision, ask=True)
        self._commit = None if found is None else found.parent.name
        return found

    def get(self, file: str) -> Path | None:
        """A file, from the cache or the network; None if the repository has none of that name."""
        return self._get(file, self._commit, ask=False)

    def _get(self, file: str, revision: str | None, *, ask: bool) -> Path | None:
        from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, try_to_load_from_cache
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        try:
            cached = try_to_load_from_cache(self.hub_id, file, revision=revision)
            if not ask and cached is not None:
                return None if cached is _CACHED_NO_EXIST else Path(str(cached))
            if not isinstance(cached, str):
                self._require_hub(file)
            return Path(hf_hub_download(self.hub_id, file, revision=revision, token=self.token))
        except LocalEntryNotFoundError as error:
            if file == CONFIG or not _offline():
                raise self._failed(error, file) from error
            return None
        except EntryNotFoundError:
            return None
        except PathsumError:
            raise
        except Exception as error:
            raise self._failed(error, file) from error

    def _require_hub(self, file: str) -> None:
        """Raise if no connection can be made, which huggingface_hub would try for 23 seconds."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url

        if self._reached or _offline():
            return
        try:
            url = hf_hub_url(self.hub_id, file, revision=self._commit or self.revision)
            get_hf_file_metadata(url, token=self.token)
        except Exception as error:
            if _is_unreachable(error):
                raise self._failed(error, file) from error
            # Any other answer is one of the hub, and the download that follows deals with it.
        self._reached = True

    def get_listed(self, ending: str) -> Path | None:
        """The last file by name with this ending: old checkpoints number their steps."""
        from huggingface_hub import HfApi

        if _offline():
            return None
        try:
            files = HfApi(token=self.token).list_repo_files(self.hub_id, revision=self.revision)
        except Exception as error:
            raise self._failed(error, ending) from error
        names = sorted(file for file in files if file.endswith(ending) and "/" not in file)
        final = [name for name in names if "final" in name] or names
        return self.get(final[-1]) if final else None

    def _failed(self, error: Exception, file: str) -> Exception:
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
        if self._commit is not None:
            return FailedError(
                f"{name} is in the cache without {file}, which could not be fetched from the hub "
                f"({first_line(error)}); check the network and try again, or set HF_HUB_OFFLINE=1 "
                "to load the cached files"
            )
        return FailedError(
            f"{name} is not a folder here and could not be fetched from the hub "
            f"({first_line(error)}); check the network and try again"
        )


def _offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _is_unreachable(error: Exception) -> bool:
    """Whether no connection was made; huggingface_hub 1 raises errors of httpx, 2 of httpx2."""
    return any(kind.__name__ in ("ConnectError", "ConnectTimeout") for kind in type(error).__mro__)
