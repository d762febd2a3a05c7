"""Configurations as nobody should write them.

Lines put together from pieces, and not values built one by one: drawing those took 50 times as long
as the parser, and most were not even TOML.
"""

from collections.abc import Iterable

from hypothesis import strategies as st

VALUES = (
    *("true", "0", "1", "-1", "64", "9223372036854775807", "0.5", "1e999", "nan", "1979-05-27"),
    *("1" * 400, "1" * 5000, f"0x{'f' * 5000}", f'"{"9" * 5000}"', f'"{"9" * 5000}.5 k"'),
    *('""', '"/a"', '"/a/../b"', '"/b"', '"a"', '"/\\u0000"', '"/\\u00e9\\t"', f'"/{"x" * 5000}"'),
    *('"127.0.0.1:80"', '"127.0.0.1:99999"', '"[::1]:1"', '":"', '"%lo:1"', '"0.0.0.0:80"'),
    *('"1 MiB"', '"-1 MiB"', '"9e99 GiB"', '"3d"', '"1e9 d"', '"group"', '"root"', '"\\U0010ffff"'),
    *('"every 0s"', '"every 1h"', '"daily 99:99 for 5h"', '"Mon-Xyz 01:00 for 1h"', '"off "'),
    *("[]", "[1, [2]]", "{}", '{ path = "/a" }', "{ a = { b = [{}] } }", '[{ path = "/a" }]'),
    *("1979-05-27T07:32:00Z", '["*", "[", "a/[!"]', f'["{"*a" * 2000}"]'),
)
BROKEN = (
    *("0x1g", '"\\ud800"', "'/\x01'", "[" * 500, "{" * 500, "25:61:61", '"', "'''", '"""\n', "#"),
    *(
        "",
        "\x00",
        "[volume]",
        "[[volume.path]]",
        "[[volume]]",
        "[",
        "]",
        "\r",
        "\ufeff",
        "'\\' = 1",
    ),
)


def rows(keys: Iterable[str]) -> st.SearchStrategy[str]:
    """Lines of a table, each key once."""
    names = st.sampled_from([*keys, "x", "y" * 3000])
    some = st.lists(
        st.tuples(names, st.sampled_from(VALUES)), unique_by=lambda pair: pair[0], max_size=3
    )
    return some.map(lambda chosen: "".join(f"{key} = {value}\n" for key, value in chosen))


def malformed(keys: Iterable[str], volume_keys: Iterable[str] = ()) -> st.SearchStrategy[str]:
    """Texts of a file with these keys, and those of a table ``[[volume]]``."""
    tables = rows(volume_keys).map("[[volume]]\n{}".format)
    well_formed = st.builds("{}{}".format, rows([*keys, "volume"]), st.just("") | tables)

    @st.composite
    def broken(draw: st.DrawFn) -> str:
        """Something stands in place of a piece."""
        text = draw(well_formed)
        start = draw(st.integers(0, 60))
        end = start + draw(st.integers(0, 5))
        return text[:start] + draw(st.sampled_from(BROKEN)) + text[end:]

    return st.text(max_size=60) | broken() | well_formed | rows(keys)
