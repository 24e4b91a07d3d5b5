"""The launcher with a toy data service. The service's servers start in a moment and send tokens."""

from headrace.host import services
from headrace.host.main import entry_point
from token_service import TokenService

services.SERVICES["tf_data"] = TokenService

if __name__ == "__main__":
    entry_point(__file__)
