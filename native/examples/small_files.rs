//! The minimum cost of a tree of small files: a plain loop over the system calls that every reader
//! needs, on one thread and on two.
//!
//! `cargo run --release --no-default-features --example small_files -- DIR`

use std::ffi::{CStr, CString};
use std::fs::read_dir;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

use native::system::files::{owned, status_at, status_of};
use native::system::reads::fill;
use std::os::fd::{AsRawFd, RawFd};

/// Larger files are read in pieces, so their cost is that of their bytes.
const SMALL_BYTES: i64 = 1 << 20;
const BUFFER_BYTES: usize = 8 << 20;
const ROUNDS: usize = 3;

/// A directory, and its small files in the order of their inodes.
struct Directory {
    path: CString,
    names: Vec<CString>,
}

fn list(path: &Path, found: &mut Vec<Directory>, bytes: &mut i64) -> io::Result<()> {
    let (mut names, mut below) = (Vec::new(), Vec::new());
    for entry in read_dir(path)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            below.push(entry.path());
        } else if kind.is_file() {
            let name = CString::new(entry.file_name().as_bytes())?;
            let full = CString::new(entry.path().as_os_str().as_bytes())?;
            let status = status_at(libc::AT_FDCWD, &full)?;
            if status.st_size < SMALL_BYTES {
                *bytes += status.st_size;
                names.push((status.st_ino, name));
            }
        }
    }
    names.sort();
    let names = names.into_iter().map(|(_, name)| name).collect();
    found.push(Directory { path: CString::new(path.as_os_str().as_bytes())?, names });
    below.into_iter().try_for_each(|path| list(&path, found, bytes))
}

fn open(directory: RawFd, name: &CStr, flags: i32) -> io::Result<std::os::fd::OwnedFd> {
    // SAFETY: `name` is NUL-terminated.
    owned(unsafe { libc::openat(directory, name.as_ptr(), flags | libc::O_CLOEXEC) })
}

fn stat_all(directory: RawFd, names: &[CString], _: &mut [u8]) -> io::Result<()> {
    names.iter().try_for_each(|name| status_at(directory, name).map(drop))
}

fn read_all(directory: RawFd, names: &[CString], buffer: &mut [u8]) -> io::Result<()> {
    let mut at = 0;
    for name in names {
        let file = open(directory, name, libc::O_RDONLY | libc::O_NOATIME)?;
        let size = status_of(file.as_raw_fd())?.st_size as usize;
        if at + size > buffer.len() {
            at = 0;
        }
        if fill(file.as_raw_fd(), &mut buffer[at..at + size]).is_err() {
            return Err(io::Error::other("a file shrank"));
        }
        at += size;
    }
    Ok(())
}

type Work = fn(RawFd, &[CString], &mut [u8]) -> io::Result<()>;

/// Seconds of the best of some rounds.
fn measure(directories: &[Directory], threads: usize, work: Work) -> io::Result<f64> {
    let mut buffers = vec![vec![1; BUFFER_BYTES]; threads];
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let began = Instant::now();
        std::thread::scope(|scope| {
            let started: Vec<_> = buffers
                .iter_mut()
                .enumerate()
                .map(|(thread, buffer)| {
                    scope.spawn(move || {
                        directories.iter().skip(thread).step_by(threads).try_for_each(|one| {
                            let flags = libc::O_PATH | libc::O_DIRECTORY;
                            let directory = open(libc::AT_FDCWD, &one.path, flags)?;
                            work(directory.as_raw_fd(), &one.names, buffer)
                        })
                    })
                })
                .collect();
            started.into_iter().try_for_each(|thread| match thread.join() {
                Ok(result) => result,
                Err(_) => Err(io::Error::other("a thread failed")),
            })
        })?;
        best = best.min(began.elapsed().as_secs_f64());
    }
    Ok(best)
}

fn main() -> io::Result<()> {
    let root = std::env::args().nth(1).ok_or_else(|| io::Error::other("name a directory"))?;
    let (mut directories, mut bytes) = (Vec::new(), 0);
    list(Path::new(&root), &mut directories, &mut bytes)?;
    let files = directories.iter().map(|one| one.names.len()).sum::<usize>() as f64;
    println!("{files} files of {:.1} KB on average", bytes as f64 / files / 1e3);
    let works: [(&str, Work); 2] = [("stat", stat_all), ("open, stat, read, close", read_all)];
    for (name, work) in works {
        for threads in [1, 2] {
            let seconds = measure(&directories, threads, work)?;
            println!(
                "{name}, threads {threads}: {:.1} µs of the clock a file",
                seconds / files * 1e6
            );
        }
    }
    Ok(())
}
