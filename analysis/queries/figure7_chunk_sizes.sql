-- Figure 7: chunks by size, with and without regression, in steps of 1/32 of the largest. The last
-- chunk of a file ends where the file does, whatever the algorithm, and is left out.
SELECT chunking, step_bytes * floor(length_bytes / step_bytes)::BIGINT AS size_bytes,
       scaled(count(*)) AS chunks, scaled(sum(length_bytes)) AS data_bytes
FROM (
    SELECT c.chunking, c.length_bytes, getvariable('step_bytes') AS step_bytes
    FROM both_chunkings AS c JOIN files AS f USING (file)
    WHERE c.offset_bytes + c.length_bytes < f.length_bytes + f.hole_bytes
)
GROUP BY chunking, step_bytes, size_bytes
ORDER BY chunking, size_bytes;
