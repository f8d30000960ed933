# SPDX-License-Identifier: Apache-2.0
from steptape._fake import engine


class Worker(engine.Worker):
    pass
