//! The required functions of `librados.so.2`, loaded with the first connection: a machine without
//! Ceph needs no library.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

/// A cluster, a pool or a completion of the library.
pub type Handle = *mut c_void;

const FILE: &CStr = c"librados.so.2";

macro_rules! functions {
    ($($name:ident = $symbol:literal: ($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions, by their names without the prefix (`rados/librados.h`).
        pub struct Library {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Library {
            fn load() -> Result<Library, String> {
                // SAFETY: the name is NUL-terminated; the object is never unloaded.
                let object = unsafe { libc::dlopen(FILE.as_ptr(), libc::RTLD_NOW) };
                if object.is_null() {
                    return Err(error());
                }
                $(let $name = symbol(object, $symbol)?;)*
                Ok(Library {
                    // SAFETY: each symbol is the function of this name, with the type in
                    // librados.h, which does not change under the name `librados.so.2`.
                    $($name: unsafe {
                        std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($argument),*) $(-> $result)?,
                        >($name)
                    },)*
                })
            }
        }
    };
}

functions! {
    create2 = c"rados_create2": (*mut Handle, *const c_char, *const c_char, u64) -> c_int;
    conf_read_file = c"rados_conf_read_file": (Handle, *const c_char) -> c_int;
    conf_set = c"rados_conf_set": (Handle, *const c_char, *const c_char) -> c_int;
    connect = c"rados_connect": (Handle) -> c_int;
    shutdown = c"rados_shutdown": (Handle);
    ioctx_create = c"rados_ioctx_create": (Handle, *const c_char, *mut Handle) -> c_int;
    ioctx_set_namespace = c"rados_ioctx_set_namespace": (Handle, *const c_char);
    ioctx_destroy = c"rados_ioctx_destroy": (Handle);
    aio_create_completion2 = c"rados_aio_create_completion2":
        (*mut c_void, *const c_void, *mut Handle) -> c_int;
    aio_read = c"rados_aio_read":
        (Handle, *const c_char, Handle, *mut c_char, usize, u64) -> c_int;
    aio_wait_for_complete = c"rados_aio_wait_for_complete": (Handle) -> c_int;
    aio_get_return_value = c"rados_aio_get_return_value": (Handle) -> c_int;
    aio_release = c"rados_aio_release": (Handle);
}

/// The library, loaded by the first call, or the reason why it is missing.
pub fn library() -> Result<&'static Library, String> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    LIBRARY.get_or_init(Library::load).as_ref().map_err(Clone::clone)
}

fn symbol(object: *mut c_void, name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the object is loaded, and the name is NUL-terminated.
    let found = unsafe { libc::dlsym(object, name.as_ptr()) };
    if found.is_null() { Err(error()) } else { Ok(found) }
}

fn error() -> String {
    // SAFETY: a string of the loader, valid until this thread's next call of it.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return format!("{}: cannot be loaded", FILE.to_string_lossy());
    }
    // SAFETY: not null, so it is a NUL-terminated string.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
