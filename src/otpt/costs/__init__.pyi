from .architecture import Architecture, read_architecture
from .devices import Device, find_device, list_devices
from .language import Texts, text_forward, text_product
from .memory import Memory, memory_of
from .operations import Cost
from .planning import Planned, plan_dataset
from .speed import Speed, measure_speed, read_speed, speed_path, write_speed
from .texts import texts_of
from .vision import image_tower
from .work import ImageCost, image_cost

__all__ = [
    "Architecture",
    "Cost",
    "Device",
    "ImageCost",
    "Memory",
    "Planned",
    "Speed",
    "Texts",
    "find_device",
    "image_cost",
    "image_tower",
    "list_devices",
    "measure_speed",
    "memory_of",
    "plan_dataset",
    "read_architecture",
    "read_speed",
    "speed_path",
    "text_forward",
    "text_product",
    "texts_of",
    "write_speed",
]
