"""The memory of the runtime's arrays, on the host or on a GPU, and the operations on it."""

from h2o_runtime.devices.device import Device, Flow
from h2o_runtime.devices.host import HostDevice
from h2o_runtime.devices.tensor import Tensor

__all__ = ["Device", "Flow", "HostDevice", "Tensor"]
