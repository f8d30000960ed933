# SPDX-License-Identifier: Apache-2.0
from steptape._fake.runners import FakeRunnerV2


class GPUModelRunner(FakeRunnerV2):
    pass
