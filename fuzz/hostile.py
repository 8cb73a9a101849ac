"""Values that nobody should type, and some that people do."""

from __future__ import annotations

from random import Random

WHOLE = (
    "0", "-1", "1", "2", "3", "7", "1000000", "4294967295", "4294967296", "9223372036854775807",
    "9223372036854775808", "18446744073709551615", "18446744073709551616", "1" + "0" * 30, "-0",
    "1e3", "1.5", "1_000", "٣", "0x10", "", " ", "nan", "inf", "None", "+1", "100000", "1 2",
)  # fmt: skip
REAL = (
    "0", "-1", "1", "0.5", "1e-3", "1e-300", "5e-324", "1e-400", "1e160", "1e300", "1e308", "1e400",
    "-1e400", "nan", "NaN", "-nan", "inf", "-inf", "Infinity", "", " ", "1/0", "1/3", "0/0", "1e",
    "1,5", "1_0", "0x1p3", "1e-16", "1e-17", "2", "0.99", "1.01", "1e999999999",
    "\u0663.\u0665", "-0.0",
)  # fmt: skip
RANGES = (
    "2:100000000000", "2,4", "4", "1", "0", "-1", "-5:5", "2:2", "5:2", "2:10:0", "2:10:-1",
    "1:2:3:4", "2:100000:1", "1:100002", "0,0", ",", ":", "::", "2:", ":4", "2::2", "99999999999",
    "1e2", "nan", "all", "none", "longest", "", " ", "2,,4", "a:b", "2;4", "2:9:3", "1,2,3",
    "-9223372036854775809:9223372036854775808", "0:1000000000000000000000:3", "16", "33",
)  # fmt: skip
FRACTIONS = (
    "36/255", "1/0", "0/1", "-1/2", "1e400", "nan", "inf", "1e160", "1e-320", "1/3,1/3", "0.1,0.2",
    ",", "", "1/1e400", "9" * 400, "1/" + "9" * 400, "0.5,1e308", "1e308,1e-308", "a", "1//2",
    "0.25", "1e99999999", "5e-324",
)  # fmt: skip
NAMES = (
    "", " ", "[red]", "[/red]", "[bold", "[/]", "a[b]c", "[link=x]y[/link]", "\\[x]", ":smile:",
    "$HOME", "${IFS}", "`ls`", "a;b", "a b", "😀", "é", "\u202e\u202d", "\x07", "\x1b[31m", "a\nb",
    "a\tb", "\x00", "a\x00b", "\udcff", "a\udc80b", ".", "..", "/", "//", "~", "-", "--", "-x",
    "--out", "--help", "/dev/null", "/dev/full", "/proc/self/mem", "/etc/passwd", "/root/x", "/x/y",
    "x" * 300, "x/" * 2000 + "y", "%s", "{0}", "{task.fields}", "CON", "a" * 5000, "\\", "'", '"',
    "none", "None", "null", "NaN", "minilm", "identity.npy", "x.npy", "x.npz", "../x", "*", "?",
)  # fmt: skip
DEVICES = (
    "cpu", "cpu:0", "cpu:1", "cpu:99999999999999999999", "cuda", "cuda:0", "cuda:-1", "mps", "meta",
    "xpu", "hpu", "vulkan", "xla", "mkldnn", "privateuseone", "nonsense", "", " ", "CPU", "0", "-1",
    "[red]", "cuda:x",
)  # fmt: skip
SEEDS = ("0", "1", "4294967295", "4294967296", "18446744073709551616", "-1", "1e3", "", "nan")
THREADS = ("1", "2", "0", "-1", "100000", "4294967296", "99999999999999999999", "x", "1.5", "")


def mixed(rng: Random) -> str:
    """Two hostile pieces glued together, or one with random characters in it."""
    pieces = [rng.choice(rng.choice((WHOLE, REAL, RANGES, FRACTIONS, NAMES))) for _ in range(2)]
    noise = "".join(
        chr(rng.choice((rng.randrange(32, 127), rng.randrange(1, 0x2FFF)))) for _ in range(3)
    )
    return rng.choice(("".join(pieces), pieces[0] + noise, noise, ",".join(pieces)))
