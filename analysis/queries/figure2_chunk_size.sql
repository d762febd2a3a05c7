-- Figure 2: savings by chunking, with and without compression of the chunks.
SELECT chunking, dataset, data_bytes, chunks, distinct_chunks,
       unique_bytes, unique_deviation, stored_bytes, stored_deviation, sampled_chunks
FROM savings
WHERE data_bytes > 0
ORDER BY list_position(getvariable('chunkings'), chunking), dataset = getvariable('everything'),
         dataset;
