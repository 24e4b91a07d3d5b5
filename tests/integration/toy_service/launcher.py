"""The launcher, with a data service that is not one of headrace's own."""

from headrace.host import services
from headrace.host.main import entry_point
from toy_service import ToyService

services.SERVICES["tf_data"] = ToyService

if __name__ == "__main__":
    entry_point(__file__)
