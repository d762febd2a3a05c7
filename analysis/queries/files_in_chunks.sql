-- Files with chunk_bytes: what of their content, holes included, lies in chunks of the view chunks,
-- and so neither in rows of zeros nor in holes.
CREATE OR REPLACE TEMPORARY VIEW files_in_chunks AS
SELECT files.*, length_bytes + hole_bytes - coalesce(blank_bytes, 0) AS chunk_bytes
FROM files LEFT JOIN (
    SELECT file, sum(length_bytes) AS blank_bytes FROM blank_rows GROUP BY file
) USING (file);
