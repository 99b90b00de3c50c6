"""``otpt serve``: the classifier behind HTTP. Needs the extra ``otpt[serve]``."""

from otpt.serve.app import create_app
from otpt.serve.config import Limits, ServiceConfig
from otpt.serve.service import Service

__all__ = ["Limits", "Service", "ServiceConfig", "create_app"]
