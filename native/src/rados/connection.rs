//! A connection to one namespace of a pool.

use std::ffi::{CStr, CString, c_int};
use std::ptr;
use std::sync::Mutex;

use super::library::{Handle, Library, library};
use crate::threads::lock::locked;

/// Where a store is, and as which user it is reached.
pub struct Address {
    pub conf: CString,
    pub user: CString,
    pub keyring: Option<CString>,
    pub pool: CString,
    pub namespace: CString,
    /// After so long without an answer an operation fails: seconds, as the library reads them.
    pub timeout_s: CString,
}

/// The reason why there is no connection.
pub enum Refusal {
    /// The library is not there.
    Library(String),
    /// An errno of the library.
    Errno(i32),
}

/// Safe to use from several threads. Dropping it waits for what is in flight.
pub struct Connection {
    pub(super) library: &'static Library,
    cluster: Handle,
    pub(super) pool: Handle,
    pub(super) idle: IdleBuffers,
}

// SAFETY: the library's handles of clusters and pools may be used by several threads at a time.
unsafe impl Send for Connection {}
// SAFETY: as above.
unsafe impl Sync for Connection {}

impl Connection {
    /// Waits for the address's time at most.
    pub fn open(address: &Address) -> Result<Connection, Refusal> {
        let library = library().map_err(Refusal::Library)?;
        let mut cluster = ptr::null_mut();
        // SAFETY: strings that end, and a handle that is written to.
        check(unsafe {
            (library.create2)(&raw mut cluster, c"ceph".as_ptr(), address.user.as_ptr(), 0)
        })?;
        // From here on dropping it gives everything back, also where a step fails.
        let mut connection =
            Connection { library, cluster, pool: ptr::null_mut(), idle: IdleBuffers::default() };
        // SAFETY: the handle is of a cluster that is not connected yet, and the string ends.
        check(unsafe { (library.conf_read_file)(cluster, address.conf.as_ptr()) })?;
        if let Some(keyring) = &address.keyring {
            connection.set(c"keyring", keyring)?;
        }
        for name in [c"rados_osd_op_timeout", c"rados_mon_op_timeout", c"client_mount_timeout"] {
            connection.set(name, &address.timeout_s)?;
        }
        // SAFETY: a handle of a cluster; the library waits for `client_mount_timeout` at most.
        check(unsafe { (library.connect)(cluster) })?;
        // SAFETY: a handle of a cluster that is connected, a string that ends, and a handle that is
        // written to where the call succeeds.
        check(unsafe {
            (library.ioctx_create)(cluster, address.pool.as_ptr(), &raw mut connection.pool)
        })?;
        // SAFETY: the pool's handle is good, and the string ends.
        unsafe { (library.ioctx_set_namespace)(connection.pool, address.namespace.as_ptr()) };
        Ok(connection)
    }

    fn set(&self, name: &CStr, value: &CStr) -> Result<(), Refusal> {
        // SAFETY: a handle of a cluster, and strings that end.
        check(unsafe { (self.library.conf_set)(self.cluster, name.as_ptr(), value.as_ptr()) })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: nobody else has the handles any more: reads borrow the connection.
        unsafe {
            if !self.pool.is_null() {
                (self.library.ioctx_destroy)(self.pool);
            }
            (self.library.shutdown)(self.cluster);
        }
    }
}

/// Memory for objects that are read, used again: a page that is new from the system costs a fault.
#[derive(Default)]
pub(super) struct IdleBuffers(Mutex<Vec<Vec<u8>>>);

const IDLE_MAX: usize = 64;
/// Longer ones are not kept.
const IDLE_BYTES_MAX: usize = 1 << 20;

impl IdleBuffers {
    /// At least `length` bytes, with anything in them.
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
