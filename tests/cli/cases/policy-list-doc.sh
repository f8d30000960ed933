# SPDX-License-Identifier: Apache-2.0
# docs/policies.md is what the program says.
sed -n '/^```$/,/^```$/p' "$SOURCE/docs/policies.md" | grep -v '^```$' >page.txt
steptape replay --policy list >list.txt
diff page.txt list.txt
