"""Opacus under the subsampled shuffle model: change one import, read a certified ε.

Importing this package registers the accountants ``"subsampled_shuffle_rdp"`` and ``"subsampled_shuffle_pld"``
with Opacus, and makes its ``BatchMemoryManager`` split our loaders in our way. Every ε is for replace-one
neighbours at fixed population.
"""

from shuffle_plugins.core.extras import advised, face

with advised("opacus"):
    from opacus.utils import batch_memory_manager

    from opacus_shuffle.accountants import register_accountants
    from opacus_shuffle.loaders import wrap_data_loader

register_accountants()
batch_memory_manager.wrap_data_loader = wrap_data_loader

__getattr__, __dir__, __all__ = face(__name__, __file__, extra="opacus")
