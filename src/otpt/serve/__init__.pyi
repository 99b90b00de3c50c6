from .app import create_app
from .limits import Limits
from .service import Service

__all__ = ["Limits", "Service", "create_app"]
