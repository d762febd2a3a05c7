-- A path as text: bytes of names that are no UTF-8 as \x and their value.
CREATE MACRO shown(path) AS coalesce(TRY(decode(path)), path::VARCHAR);
CREATE MACRO directory(path) AS regexp_replace(path, '(^|/)[^/]*$', '');
CREATE MACRO filename(path) AS regexp_extract(path, '[^/]*$');

-- The type of a file: its extension in small letters, or ''. A name that begins with its only dot
-- has none. Versions after it are no type. They are numbers, parts that begin with a digit and have
-- more than letters and digits, and all behind .so. and a number that begins with a digit:
-- libc.so.6, libLLVM.so.22.1-rust-1.95.0-stable and libssl.so.1.0.2k are so.
CREATE MACRO type(name) AS
    CASE WHEN regexp_full_match(name, '(?is).+\.so\.[0-9]+(\.[0-9][^.]*)*') THEN 'so'
         ELSE lower(regexp_extract(
              regexp_replace(name, '(\.([0-9]+|[0-9][^.]*[^.0-9A-Za-z][^.]*))+$', ''),
              '(?s)^.+\.([^.]*)$', 1)) END;
