//! Stopping a search from outside and keeping what it has found: Ctrl-C gives the incumbent.
//!
//! HiGHS asks a callback during a search whether to go on.

#![expect(
    unsafe_code,
    reason = "HiGHS asks through a C callback; there is no other way to stop it and keep its incumbent"
)]

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use highs::Model;
use highs_sys::{
    Highs_setCallback, Highs_startCallback, HighsCallbackDataIn, HighsCallbackDataOut, kHighsCallbackMipInterrupt,
    kHighsCallbackSimplexInterrupt,
};

/// Lets a model's search end once `asked` is set. The flag must outlive the search, which the caller's borrow ensures.
pub(super) fn watch(model: &mut Model, asked: &AtomicBool) {
    let flag = std::ptr::from_ref(asked).cast_mut().cast::<c_void>();
    // SAFETY: the pointer is the model's own; the callback reads the flag atomically and never writes through it.
    unsafe {
        Highs_setCallback(model.as_mut_ptr(), Some(answer), flag);
        for kind in [kHighsCallbackMipInterrupt, kHighsCallbackSimplexInterrupt] {
            Highs_startCallback(model.as_mut_ptr(), kind);
        }
    }
}

extern "C" fn answer(
    _kind: c_int,
    _message: *const c_char,
    _seen: *const HighsCallbackDataOut,
    reply: *mut HighsCallbackDataIn,
    flag: *mut c_void,
) {
    // SAFETY: HiGHS passes a reply to write to and the pointer given to `watch`, whose flag is borrowed for the whole search.
    unsafe {
        if let (Some(reply), Some(asked)) = (reply.as_mut(), flag.cast::<AtomicBool>().as_ref()) {
            reply.user_interrupt = c_int::from(asked.load(Ordering::Relaxed));
        }
    }
}
