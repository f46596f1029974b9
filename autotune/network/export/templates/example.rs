// rustc example.rs -L. -C link-arg=-Wl,-rpath,'$ORIGIN' && ./example

use std::os::raw::{c_char, c_int, c_void};

#[repr(C)]
struct Inputs {
@inputs@}

#[repr(C)]
struct Outputs {
@outputs@}

#[link(name = "@name@")]
extern "C" {
    fn @name@_create(options: *const c_void, model: *mut *mut c_void) -> c_int;
    fn @name@_run(model: *mut c_void, inputs: *const Inputs, outputs: *const Outputs) -> c_int;
    fn @name@_destroy(model: *mut c_void);
    fn @name@_strerror(status: c_int) -> *const c_char;
}

fn require(status: c_int) {
    if status != 0 {
        let text = unsafe { std::ffi::CStr::from_ptr(@name@_strerror(status)) };
        panic!("{}", text.to_string_lossy());
    }
}

fn main() {
@arrays@    let mut model = std::ptr::null_mut();
    unsafe {
        require(@name@_create(std::ptr::null(), &mut model));
        require(@name@_run(model, &Inputs { @given@ }, &Outputs { @made@ }));
        @name@_destroy(model);
    }
@shown@}
