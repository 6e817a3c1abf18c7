//! Makes the tables in `examples/`, which are synthetic: `cargo run --example example_data -- oven
//! > examples/oven.csv`.

use bilip::Rng;

fn main() {
    let mut rng = Rng::new(20);
    match std::env::args().nth(1).as_deref() {
        // Baking: the loss has a curved valley and its minimum 0.3 at 220 degrees and 30 minutes;
        // noise of 0.02.
        Some("oven") => {
            println!("temperature,minutes,loss");
            for _ in 0..2_000 {
                let (temperature, minutes) = (160.0 + 80.0 * rng.uniform(), 10.0 + 40.0 * rng.uniform());
                let (u, v) = ((temperature - 200.0) / 20.0, (minutes - 20.0) / 10.0);
                let loss = 0.3 + (u - 1.0).powi(2) / 10.0 + 0.5 * (v - u * u).powi(2);
                println!("{temperature:.2},{minutes:.2},{:.4}", loss + 0.02 * rng.normal());
            }
        }
        // A lens that bends straight lines: the position in the picture, in pixels, for directions
        // in degrees.
        Some("lens") => {
            println!("azimuth,elevation,u,v");
            for _ in 0..1_500 {
                let (a, e) = (60.0 * rng.uniform() - 30.0, 40.0 * rng.uniform() - 20.0);
                let square = (a * a + e * e) / 900.0;
                let bend = 1.0 - 0.12 * square + 0.01 * square * square;
                let (u, v) = (640.0 + 19.0 * a * bend + 0.4 * e, 360.0 + 19.0 * e * bend);
                println!("{a:.3},{e:.3},{u:.2},{v:.2}");
            }
        }
        // The valley of a loss that moves with the humidity p: partial models.
        Some("humidity") => {
            println!("temperature,minutes,humidity,loss");
            for _ in 0..3_000 {
                let (temperature, minutes) = (160.0 + 80.0 * rng.uniform(), 10.0 + 40.0 * rng.uniform());
                let humidity = 20.0 + 60.0 * rng.uniform();
                let (u, v) = ((temperature - 200.0) / 20.0, (minutes - 20.0) / 10.0);
                let a = (humidity - 50.0) / 30.0;
                let loss = 0.3 + (u - a).powi(2) / 4.0 + 0.5 * (v - 0.5 * u * u).powi(2);
                println!(
                    "{temperature:.2},{minutes:.2},{humidity:.2},{:.4}",
                    loss + 0.01 * rng.normal()
                );
            }
        }
        // Two half circles that hold each other, one class each.
        Some("moons") => {
            println!("x,y,class");
            for k in 0..400 {
                let angle = std::f64::consts::PI * rng.uniform();
                let (x, y, class) = match k % 2 {
                    0 => (angle.cos() - 0.1, angle.sin() + 0.2, "upper"),
                    _ => (1.1 - angle.cos(), 0.3 - angle.sin(), "lower"),
                };
                let (x, y) = (x + 0.1 * rng.normal(), y + 0.1 * rng.normal());
                println!("{x:.4},{y:.4},{class}");
            }
        }
        _ => eprintln!("usage: example_data oven|lens|humidity|moons"),
    }
}
