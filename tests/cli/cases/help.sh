# SPDX-License-Identifier: Apache-2.0
steptape --help
