# SPDX-License-Identifier: Apache-2.0
from steptape._fake.runners import FakeRunnerV1


class GPUModelRunner(FakeRunnerV1):
    pass
