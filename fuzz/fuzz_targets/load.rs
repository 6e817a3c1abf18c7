//! Feeds arbitrary bytes to the model loader; whatever loads is also used.
#![no_main]

use bilip::Model;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(model) = Model::from_bytes(bytes) {
        // A loaded model must survive being written, read, verified and evaluated.
        let again = model.to_bytes().expect("a loaded model can be written");
        Model::from_bytes(&again).expect("and read again");
        model.verify();
        let x = vec![0.5; model.dim()];
        drop(model.evaluate(&x, &vec![0.5; model.parameters()]));
    }
});
