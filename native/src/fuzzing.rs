//! Runs the fuzz targets with their corpora, and with changed inputs for a moment.

use std::fs::{read, read_dir};
use std::path::Path;
use std::time::Duration;

#[path = "../fuzz/src/replay.rs"]
mod replay;
#[allow(dead_code)]
#[path = "../fuzz/src/targets.rs"]
mod targets;

/// Time for each target.
const TIME: Duration = Duration::from_millis(300);

#[test]
fn no_input_of_a_corpus_is_taken_for_what_it_is_not() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    for (name, target) in targets::TARGETS {
        let files = read_dir(corpora.join(name)).expect("a target without a corpus");
        let inputs: Vec<_> = files.map(|file| read(file.unwrap().path()).unwrap()).collect();
        assert!(!inputs.is_empty(), "{name}: an empty corpus");
        assert!(replay::replay(target, &inputs, TIME) > 0);
    }
}
