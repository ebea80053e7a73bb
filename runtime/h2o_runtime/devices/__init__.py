"""Where the runtime's arrays lie and what can be done to them there: the host's memory, or a GPU's."""

from h2o_runtime.devices.base import Device, Flow
from h2o_runtime.devices.host import HostDevice
from h2o_runtime.devices.tensor import Tensor

__all__ = ["Device", "Flow", "HostDevice", "Tensor"]
