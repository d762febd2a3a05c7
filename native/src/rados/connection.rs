//! A connection to one namespace of a pool.

use std::ffi::{CStr, CString, c_int};
use std::ptr;
use std::sync::Mutex;

use super::library::{Handle, Library, library};
use crate::threads::lock::locked;

/// The address of a store, and the user for the connection.
pub struct Address {
    pub conf: CString,
    pub user: CString,
    pub keyring: Option<CString>,
    pub pool: CString,
    pub namespace: CString,
    /// Time limit for an operation without an answer, in seconds, as the library parses them.
    pub timeout_s: CString,
}

/// The reason why there is no connection.
pub enum Refusal {
    /// The library is missing.
    Library(String),
    /// An errno of the library.
    Errno(i32),
}

/// Safe to use from several threads. Dropping it waits for reads in progress.
pub struct Connection {
    pub(super) library: &'static Library,
    cluster: Handle,
    pub(super) pool: Handle,
    pub(super) idle: IdleBuffers,
}

// SAFETY: several threads may use the library's handles of clusters and pools at a time.
unsafe impl Send for Connection {}
// SAFETY: as above.
unsafe impl Sync for Connection {}

impl Connection {
    /// Waits at most for the time limit of the address.
    pub fn open(address: &Address) -> Result<Connection, Refusal> {
        let library = library().map_err(Refusal::Library)?;
        let mut cluster = ptr::null_mut();
        // SAFETY: NUL-terminated strings, and a writable handle.
        check(unsafe {
            (library.create2)(&raw mut cluster, c"ceph".as_ptr(), address.user.as_ptr(), 0)
        })?;
        // From here on, dropping it releases everything, even if a step fails.
        let mut connection =
            Connection { library, cluster, pool: ptr::null_mut(), idle: IdleBuffers::default() };
        // SAFETY: the handle is of an unconnected cluster, and the string is NUL-terminated.
        check(unsafe { (library.conf_read_file)(cluster, address.conf.as_ptr()) })?;
        if let Some(keyring) = &address.keyring {
            connection.set(c"keyring", keyring)?;
        }
        for name in [c"rados_osd_op_timeout", c"rados_mon_op_timeout", c"client_mount_timeout"] {
            connection.set(name, &address.timeout_s)?;
        }
        // SAFETY: a handle of a cluster; the library waits at most for `client_mount_timeout`.
        check(unsafe { (library.connect)(cluster) })?;
        // SAFETY: a handle of a connected cluster, a NUL-terminated string, and a handle that is
        // written to if the call succeeds.
        check(unsafe {
            (library.ioctx_create)(cluster, address.pool.as_ptr(), &raw mut connection.pool)
        })?;
        // SAFETY: the pool's handle is valid, and the string is NUL-terminated.
        unsafe { (library.ioctx_set_namespace)(connection.pool, address.namespace.as_ptr()) };
        Ok(connection)
    }

    fn set(&self, name: &CStr, value: &CStr) -> Result<(), Refusal> {
        // SAFETY: a handle of a cluster, and NUL-terminated strings.
        check(unsafe { (self.library.conf_set)(self.cluster, name.as_ptr(), value.as_ptr()) })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: the handles have no other user, because reads borrow the connection.
        unsafe {
            if !self.pool.is_null() {
                (self.library.ioctx_destroy)(self.pool);
            }
            (self.library.shutdown)(self.cluster);
        }
    }
}

/// Reusable memory for objects: a new page from the system costs a fault.
#[derive(Default)]
pub(super) struct IdleBuffers(Mutex<Vec<Vec<u8>>>);

const IDLE_MAX: usize = 64;
/// Longer buffers are not kept.
const IDLE_BYTES_MAX: usize = 1 << 20;

impl IdleBuffers {
    /// At least `length` bytes with undefined content.
    pub fn of(&self, length: usize) -> Vec<u8> {
        let mut buffer = locked(&self.0).pop().unwrap_or_default();
        if buffer.len() < length {
            buffer.resize(length, 0);
        }
        buffer
    }

    pub fn give_back(&self, buffer: Vec<u8>) {
        let mut idle = locked(&self.0);
        if idle.len() < IDLE_MAX && buffer.len() <= IDLE_BYTES_MAX {
            idle.push(buffer);
        }
    }
}

fn check(result: c_int) -> Result<(), Refusal> {
    if result < 0 { Err(Refusal::Errno(-result)) } else { Ok(()) }
}
