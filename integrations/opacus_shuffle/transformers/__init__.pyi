from .trainer import PrivacyArguments as PrivacyArguments
from .trainer import PrivateTrainer as PrivateTrainer
