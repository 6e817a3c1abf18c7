//! Feeds arbitrary bytes to the model loader; whatever loads is also used.
#![no_main]

use bilip::{BiLipschitz, Model, Network, Real, Stored};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(model) = Model::from_bytes(bytes) {
        // A loaded model must survive being written, read, verified and evaluated.
        let again = model.to_bytes().expect("a loaded model can be written");
        Model::from_bytes(&again).expect("and read again");
        model.verify();
        match &model.network {
            Stored::F32(network) => evaluate(network),
            Stored::F64(network) => evaluate(network),
        }
    }
});

fn evaluate<T: Real>(network: &Network<T>) {
    let x = vec![T::round_from(0.5); network.dim()];
    match network {
        Network::MonLip(layer) => drop(layer.forward(&x)),
        Network::BiLipNet(net) => drop(net.forward(&x)),
        Network::PlNet(f) => drop(f.value(&x)),
        Network::PartialBiLipNet(net) => drop(net.forward(&x, &vec![T::round_from(0.5); net.parameters()])),
        Network::PartialPlNet(f) => drop(f.value(&x, &vec![T::round_from(0.5); f.net().parameters()])),
        _ => {}
    }
}
