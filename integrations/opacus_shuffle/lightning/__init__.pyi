from .callback import LightningCallback as LightningCallback
