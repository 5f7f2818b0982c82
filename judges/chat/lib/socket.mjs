// A WebSocket client of the server's: sends frames, keeps what it hears, and waits for what it means.

import { once } from 'node:events';
import WebSocket from 'ws';

import { until } from './server.mjs';

export class Socket {
    frames = [];
    #read = 0;

    /** Opens a connection that ends with the test `t`. */
    static async open(t, server, { path = '/ws', headers } = {}) {
        const socket = new Socket();
        socket.ws = new WebSocket(server.origin.replace('http', 'ws') + path, { headers });
        socket.ws.on('message', (text) => socket.frames.push(JSON.parse(text)));
        socket.ws.on('error', () => {});
        t.after(() => socket.ws.terminate());
        await once(socket.ws, 'open');
        return socket;
    }

    send(frame) {
        this.ws.send(JSON.stringify(frame));
    }

    /** The next frame that fits, behind the last one that was awaited. */
    await(fits) {
        return until('a frame that fits', () => {
            const at = this.frames.findIndex((frame, index) => index >= this.#read && fits(frame));
            if (at === -1) return null;
            this.#read = at + 1;
            return this.frames[at];
        });
    }
}
