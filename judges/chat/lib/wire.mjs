// A wire that can be cut: forwards TCP to the server, and breaks where it is told to.

import { once } from 'node:events';
import net from 'node:net';

export class Wire {
    #faults = [];
    #sockets = new Set();
    connections = 0;
    cuts = 0;

    /** A wire to the server that ends with the test `t`. It follows the server to its new port after a restart. */
    static async open(t, server) {
        const wire = new Wire();
        const listener = net.createServer((near) => wire.#forward(near, server.port));
        listener.listen(0, '127.0.0.1');
        await once(listener, 'listening');
        wire.origin = `http://127.0.0.1:${listener.address().port}`;
        t.after(() => {
            listener.close();
            wire.#sockets.forEach((socket) => socket.destroy());
        });
        return wire;
    }

    /** Cuts once, right behind so many frames of a stream; none means before the first byte of an answer. */
    cutAfterFrames(count) {
        let left = count;
        this.#faults.push((bytes) => {
            if (count === 0) return { pass: 0, done: true };
            for (let at = bytes.indexOf('\n\n'); at !== -1; at = bytes.indexOf('\n\n', at + 2)) {
                left -= 1;
                if (left === 0) return { pass: at + 2, done: true };
            }
            return null;
        });
    }

    /** Every connection carries so many bytes to the client, as `draw` says each time, and is then cut. */
    cutEvery(draw) {
        this.draw = draw;
    }

    /** The next answer arrives here and goes no further. The server has done what it was asked. */
    swallowAnswer() {
        this.cutAfterFrames(0);
    }

    #forward(near, port) {
        this.connections += 1;
        const far = net.connect(port, '127.0.0.1');
        let budget = this.draw?.() ?? Infinity;
        for (const socket of [near, far]) {
            this.#sockets.add(socket);
            socket.on('error', () => {});
            socket.on('close', () => {
                this.#sockets.delete(socket);
                near.destroy();
                far.destroy();
            });
        }
        near.pipe(far);
        far.on('data', (bytes) => {
            const verdict = this.#faults[0]?.(bytes) ?? (bytes.length >= budget ? { pass: budget } : null);
            if (!verdict) {
                budget -= bytes.length;
                if (!near.write(bytes)) {
                    far.pause();
                    near.once('drain', () => far.resume());
                }
                return;
            }
            if (verdict.done) this.#faults.shift();
            this.cuts += 1;
            far.removeAllListeners('data');
            // What was let through is flushed first, so that the cut stands exactly where it was wanted.
            near.end(bytes.subarray(0, verdict.pass), () => near.destroy());
        });
        far.on('end', () => near.end());
    }
}
